"""Where runs happen: runtimes, fleets, jobs, the command line."""
