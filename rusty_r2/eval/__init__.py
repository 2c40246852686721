# SPDX-License-Identifier: AGPL-3.0-or-later
"""How good a mind is: one small file a measure, one table for any address. `rusty eval ADDRESS`."""
