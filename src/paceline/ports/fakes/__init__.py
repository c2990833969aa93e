"""Public in-memory fakes of the ports: what tests, examples and the simulator use instead of mocks."""
