// Stands for sources: its text is part of the build key.
