"""Protocols of one to three methods between paceline and the world, each with a public in-memory fake in `ports.fakes`."""
