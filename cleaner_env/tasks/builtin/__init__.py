"""Problems written for this project."""
