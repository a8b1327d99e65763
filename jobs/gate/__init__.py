"""What evaluate_model gathers for the gate: both models' measures on the same rows, and drift. The rules are in scoring.gate.decision."""
