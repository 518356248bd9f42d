"""`python -m studies.beyond`."""

from studies.beyond.experiment import main

if __name__ == "__main__":
    main()
