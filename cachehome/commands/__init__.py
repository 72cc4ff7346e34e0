"""The verbs of the command line, one module each: `arguments(parser)`, `run(args, settings)`, `SETTINGS`."""
