"""An OpenAI-compatible server for a policy: `tuneloop serve --policy FOLDER`."""
