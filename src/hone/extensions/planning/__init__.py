"""What a run will do, take and cost, before it starts: steps, memory, time, surprising settings; and the doctor."""
