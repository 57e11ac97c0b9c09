"""What code should cost on a machine, without running it (ADR 16)."""
