"""What every lesson shares and none teaches. A learner never has to read this folder."""
