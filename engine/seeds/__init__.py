"""The tables of the documents that this program began from, measured anew beside what they print."""
