//go:build linux

package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// fetch gets a URL through the proxy that the environment names: by plain HTTP, through a tunnel made by CONNECT, or
// by SOCKS5.
func fetch(say func(name, got string), args []string) {
	got, err := fetched(args[0], args[1])
	if err != nil {
		got = err.Error()
	}
	say("answer", strings.ReplaceAll(strings.TrimSpace(got), "\n", " "))
}

func fetched(how, to string) (string, error) {
	at, err := url.Parse(os.Getenv("HTTP_PROXY"))
	if err != nil || at.Host == "" {
		return "", errors.New("the environment names no proxy")
	}
	c, err := net.DialTimeout("tcp", at.Host, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	in := bufio.NewReader(c)
	// Not by way of package url, which knows fewer hosts than there are.
	host, path, _ := strings.Cut(strings.TrimPrefix(to, "http://"), "/")
	path = "/" + path
	switch how {
	case "http":
		path = to
	case "connect":
		fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", host, host)
		if r, err := http.ReadResponse(in, &http.Request{Method: "CONNECT"}); err != nil || r.StatusCode != 200 {
			return "", fmt.Errorf("CONNECT: %v, %v", r, err)
		}
	case "socks5":
		if err := socks(c, in, host); err != nil {
			return "", err
		}
	}
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, host)
	r, err := http.ReadResponse(in, &http.Request{Method: "GET"})
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(r.Body)
	return fmt.Sprint(r.StatusCode, " ", string(body)), err
}

func socks(c net.Conn, in io.Reader, to string) error {
	host, port, err := net.SplitHostPort(to)
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}
	c.Write([]byte{5, 1, 0})
	answer := make([]byte, 10)
	if _, err := io.ReadFull(in, answer[:2]); err != nil {
		return err
	}
	c.Write(binary.BigEndian.AppendUint16(append([]byte{5, 1, 0, 3, byte(len(host))}, host...), uint16(n)))
	if _, err := io.ReadFull(in, answer); err != nil || answer[1] != 0 {
		return fmt.Errorf("SOCKS5: %v, %v", answer, err)
	}
	return nil
}
