"""One HTML page for all results in a folder, written as a single file.

Tables are made here, from the same cells as the Markdown. Figures are those of the studies, as data on the page, drawn
by the page's script (`charts.js`, `report.js`) so that they are interactive. The page loads nothing from the network.
"""
