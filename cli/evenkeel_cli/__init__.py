"""The command line: `evenkeel up · demo · replay · simulate · top`."""
