"""Which signal tells how far to trust an output, and does escalating the doubtful ones pay?"""
