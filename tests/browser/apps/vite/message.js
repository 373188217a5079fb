export const message = "first";
