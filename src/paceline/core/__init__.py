"""The pure core: one state machine decides everything. No I/O, clock, randomness, logging or torch."""
