// Colours of the page and of the classes, for light and dark pages and for paper.

const darkScheme = matchMedia("(prefers-color-scheme: dark)");
const theme = { isPrinting: false };

function packed(colour) {
  const number = parseInt(colour.slice(1), 16);
  return (255 << 24 | (number & 255) << 16 | (number >> 8 & 255) << 8 | number >> 16) >>> 0;
}

// A colour half way to the background, for what is not exact.
function faded(colour) {
  const mix = (shift) => (((theme.lanePacked >> shift) & 255) * 0.55 + ((colour >> shift) & 255) * 0.45) & 255;
  return (255 << 24 | mix(16) << 16 | mix(8) << 8 | mix(0)) >>> 0;
}

function readTheme() {
  const isDark = darkScheme.matches && !theme.isPrinting;
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "quiet", "line", "lane", "card", "accent", "bad"]) theme[name] = style.getPropertyValue(`--${name}`).trim();
  theme.lanePacked = packed(theme.lane);
  const shade = isDark ? "dark" : "light";
  theme.classes = facts.classes.map((entry) => entry[shade]);
  theme.causes = facts.causes.map((entry) => entry[shade]);
  theme.shade = (entry) => entry[shade];
  for (const name of ["classes", "causes"]) {
    const solid = Uint32Array.from(theme[name], packed);
    theme[`${name}Packed`] = solid;
    theme[`${name}Faded`] = Uint32Array.from(solid, faded);
  }
}
