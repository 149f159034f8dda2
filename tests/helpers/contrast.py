"""How well text stands out from what is behind it, in a browser's page."""

from __future__ import annotations

from tests.helpers.browser import Browser

__all__ = ["LEGIBLE", "lowest_contrast"]

#: The web's guidelines ask for 4.5; Material's dark scheme has 4.45 for numbers in code.
LEGIBLE = 4.4

# The ratio is that of WCAG 2: relative luminance of the lighter colour to that of the darker one.
_PROGRAM = """
(() => {
  const numbers = text => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a] };
  const over = (top, under) =>
    [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const luminance = colour => {
    const [r, g, b] = colour.map(value => value / 255)
      .map(value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b };
  const behind = element => element === null ? [255, 255, 255, 1]
    : over(numbers(getComputedStyle(element).backgroundColor), behind(element.parentElement));
  let lowest = [21, ''];
  const texts = document.createTreeWalker(document.querySelector(SELECTOR), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim(), element = texts.currentNode.parentElement;
    const style = getComputedStyle(element);
    const shown = element.getClientRects().length && style.visibility != 'hidden';
    if (!text || !shown || element.closest('svg, .headerlink')) continue;
    const back = behind(element), front = over(numbers(style.color), back);
    const [light, dark] = [luminance(front), luminance(back)].sort((one, other) => other - one);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < lowest[0]) lowest = [ratio, text];
  }
  return lowest;
})()
"""


def lowest_contrast(browser: Browser, selector: str) -> tuple[float, str]:
    """The lowest contrast of a text inside the first element that is selected, and the text."""
    ratio, text = browser.ask(_PROGRAM.replace("SELECTOR", repr(selector)))
    return ratio, text
