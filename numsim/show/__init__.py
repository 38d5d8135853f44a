"""Pictures and words: results and explanations as text, HTML, JSON and matplotlib figures."""
