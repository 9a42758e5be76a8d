"""`hone.Judge` and `hone.HTTPReward`."""

EXPORTS = dict.fromkeys(("HTTPReward", "Judge"), "hone.extensions.services.services")
