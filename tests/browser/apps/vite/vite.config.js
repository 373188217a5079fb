export default { server: { allowedHosts: [".preview.internal"] } };
