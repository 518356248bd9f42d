"""`python -m npad.experiments.steering`."""

from npad.experiments.steering.experiment import main

if __name__ == "__main__":
    main()
