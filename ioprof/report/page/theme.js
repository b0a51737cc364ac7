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

const BLACK = "#12161b";
const WHITE = "#ffffff";

// Relative luminance, as WCAG 2.2 defines it.
function luminance(colour) {
  const linear = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

// Black or white, whichever has more contrast to a colour.
function inkOn(colour) {
  const ground = luminance(colour) + 0.05;
  return ground / (luminance(BLACK) + 0.05) >= (luminance(WHITE) + 0.05) / ground ? BLACK : WHITE;
}

function readTheme() {
  const isDark = darkScheme.matches && !theme.isPrinting;
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "quiet", "line", "lane", "card", "accent", "bad"]) theme[name] = style.getPropertyValue(`--${name}`).trim();
  theme.lanePacked = packed(theme.lane);
  const shade = isDark ? "dark" : "light";
  theme.classes = facts.classes.map((entry) => entry[shade]);
  theme.causes = facts.causes.map((entry) => entry[shade]);
  theme.code = facts.code.map((entry) => entry[shade]);
  theme.shade = (entry) => entry[shade];
  for (const name of ["classes", "causes", "code"]) {
    const solid = Uint32Array.from(theme[name], packed);
    theme[`${name}Packed`] = solid;
    theme[`${name}Faded`] = Uint32Array.from(solid, faded);
    theme[`${name}Ink`] = theme[name].map(inkOn);
  }
}
