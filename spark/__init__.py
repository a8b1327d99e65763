"""How Nightrank runs on Spark: session, Python workers, accelerator settings, error and event logs."""
