"""`python -m npad.experiments.tasks`."""

from npad.experiments.tasks.experiment import main

if __name__ == "__main__":
    main()
