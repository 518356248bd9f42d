"""`python -m studies.whisper`."""

from studies.whisper.experiment import main

if __name__ == "__main__":
    main()
