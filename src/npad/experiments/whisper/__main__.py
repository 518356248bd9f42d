"""`python -m npad.experiments.whisper`."""

from npad.experiments.whisper.experiment import main

if __name__ == "__main__":
    main()
