# SPDX-License-Identifier: AGPL-3.0-or-later
"""What it was worth."""
