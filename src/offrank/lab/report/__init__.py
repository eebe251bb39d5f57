"""One page for everything that was measured: read from files, written as a single file that needs no other.

Tables are HTML and made here, from the same cells as the Markdown; figures are numbers on the page, drawn by the page's
own script (`charts.js`, `report.js`) so that they can be asked questions. The page loads nothing from anywhere.
"""
