"""From raw click logs to feature tables: read, quarantine, split, fit, apply, publish."""
