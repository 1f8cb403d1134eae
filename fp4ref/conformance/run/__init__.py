"""Run subjects on cases: processes that outlive a crash, streams, repetitions, huge inputs."""
