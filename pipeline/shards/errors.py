"""The errors under the path they had in the first release. Import them from pipeline.errors."""

from pipeline.errors import *  # noqa: F403
