"""What a run will do, take and cost, before it starts: step arithmetic, memory, time, and settings that surprise."""
