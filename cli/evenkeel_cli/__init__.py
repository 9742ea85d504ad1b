"""The command line: `evenkeel up · route · demo · replay · simulate · top`."""
