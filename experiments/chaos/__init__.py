"""Faults and attacks on purpose: kills, signals, full disks, damage and hostile files."""
