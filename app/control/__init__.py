"""Controllers between panels and engine: intents go out as commands, events come in and are written into the models."""
