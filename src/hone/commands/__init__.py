"""The functions of the commands in `hone.cli.COMMANDS`."""
