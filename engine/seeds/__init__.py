"""The tables of the documents that this program is based on ("seeds"), measured again beside the published figures."""
