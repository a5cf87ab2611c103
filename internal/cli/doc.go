// Package cli is the command line: arguments in, exit code out.
//
// Each command has a file of its own name. Commands start hosts through app or
// connect to running ones through mcp/client; they contain no behaviour of the
// host. Standard output carries the result, everything else goes to standard
// error. Only cmd/gatehouse imports cli. Begin with Run.
package cli
