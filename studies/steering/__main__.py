"""`python -m studies.steering`."""

from studies.steering.experiment import main

if __name__ == "__main__":
    main()
