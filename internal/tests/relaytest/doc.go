// Package relaytest tests packages as clients see them: a whole host in front of real
// servers of both eras, over the standard streams of a child and over HTTP.
package relaytest
