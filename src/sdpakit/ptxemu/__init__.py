"""An emulator of PTX on NumPy, which finds races, deadlocks and reads out of bounds. STUB: owner C."""
