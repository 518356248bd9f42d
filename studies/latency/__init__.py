"""Quality against time: at equal latency, are noisy chains better than a beam?"""
