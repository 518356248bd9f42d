"""`python -m studies.latency`."""

from studies.latency.experiment import main

if __name__ == "__main__":
    main()
