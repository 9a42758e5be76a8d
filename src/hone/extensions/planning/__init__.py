"""Plans of runs before they start: steps, memory, time, cost, surprising settings; and the doctor."""
