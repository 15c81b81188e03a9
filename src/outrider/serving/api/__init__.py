"""HTTP APIs of the server, one file each: LibreTranslate, OpenAI and the page (`/watch`)."""
