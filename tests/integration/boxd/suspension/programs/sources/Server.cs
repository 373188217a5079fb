using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Net;
using System.Net.Sockets;
using System.Threading;

/// Counts requests in memory. Threads that produce garbage and a timer go on beside it.
/// It reads requests itself, because Mono's HttpListener closes a connection after 100 of them.
class Server {
    static long count, ticks, work;
    static int pid = Process.GetCurrentProcess().Id, nonce = new Random().Next();

    static void Produce() {
        var garbage = new List<byte[]>();
        while (true) {
            garbage.Add(new byte[10000]);
            if (garbage.Count > 1000) garbage.Clear();
            Interlocked.Increment(ref work);
            Thread.Sleep(1);
        }
    }

    static void Answer(TcpClient client) {
        var reader = new StreamReader(client.GetStream());
        var writer = new StreamWriter(client.GetStream());
        while (reader.ReadLine() != null) {
            while (reader.ReadLine() != "") { }
            string text = "{\"pid\": " + pid + ", \"nonce\": " + nonce
                + ", \"count\": " + Interlocked.Increment(ref count)
                + ", \"ticks\": " + Interlocked.Read(ref ticks)
                + ", \"work\": " + Interlocked.Read(ref work) + "}";
            writer.Write("HTTP/1.1 200 OK\r\nContent-Length: " + text.Length + "\r\n\r\n" + text);
            writer.Flush();
        }
    }

    static void Main(string[] arguments) {
        for (int number = 0; number < 4; number++) new Thread(Produce).Start();
        var timer = new Timer(_ => Interlocked.Increment(ref ticks), null, 10, 10);
        var listener = new TcpListener(IPAddress.Loopback, int.Parse(arguments[0]));
        listener.Start();
        while (true) {
            var client = listener.AcceptTcpClient();
            new Thread(() => Answer(client)).Start();
            GC.KeepAlive(timer);
        }
    }
}
