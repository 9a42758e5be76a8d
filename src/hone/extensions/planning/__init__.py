"""Plans a run before it starts (steps, memory, time, cost, surprising settings), and checks the machine."""
