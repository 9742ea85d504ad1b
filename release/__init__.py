"""Builds, signs, checks and publishes a release. docs/how-to/make-a-release.md lists the artifacts."""
