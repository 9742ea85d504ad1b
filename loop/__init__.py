"""What runs for a change: the stages of CI, and the tests of `make quick`. The stages' side needs Python alone, no package."""
