"""The demo: what a warm start is worth, shown on a real compile. `workload` is what each phase runs."""
